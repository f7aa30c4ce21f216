-- What every script begins with. KEYS[1] is the pool's log hash; the other keys
-- are named by the same prefix and so lie in the same slot.
local p = string.sub(KEYS[1], 1, -4)
local log = KEYS[1]
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local SHARDS, RING = 4, 16
-- After SILENCE ms without any reader or writer (Redis was away) nobody is taken for
-- gone for MERCY ms: the workers must be able to come back first.
local SILENCE, MERCY = 3000, 6000

local function int(n) return string.format('%.0f', n) end
local function shardless(name) return string.sub(name, 2) end

-- open is the id of this log. A log without one is new, whatever lies about.
local function open(candidate)
  local id = redis.call('HGET', log, 'id')
  if id then return id end
  redis.call('HSET', log, 'id', candidate)
  for i = 0, SHARDS - 1 do redis.call('UNLINK', p .. 'e:' .. i, p .. 'wm:' .. i) end
  for i = 0, RING - 1 do redis.call('UNLINK', p .. 'l:' .. i) end
  redis.call('UNLINK', p .. 'reg', p .. 'hello', p .. 'now')
  return candidate
end

-- add appends an entry to a shard; last is the entry before it. More fields may
-- follow.
local function add(shard, last, field, data, ...)
  local id = redis.call('XADD', p .. 'e:' .. shard, '*', 'p', last, field, data, ...)
  redis.call('HSET', log, 'last' .. shard, id)
  return id
end

local function last(shard) return redis.call('HGET', log, 'last' .. shard) or '0-0' end

-- leave forgets all of a worker; member is its name behind the shard's digit.
local function leave(member)
  local shard, worker = string.sub(member, 1, 1), shardless(member)
  local c = p .. 'c:' .. worker
  local generation = redis.call('HGET', c, 'gen')
  redis.call('UNLINK', c)
  if generation then redis.call('UNLINK', p .. 's:' .. generation .. ':' .. worker) end
  redis.call('ZREM', p .. 'reg', member)
  redis.call('ZREM', p .. 'wm:' .. shard, worker)
  redis.call('HDEL', p .. 'hello', worker)
  redis.call('HINCRBY', log, 'members', 1)
end

-- trim cuts what all snapshots of a shard cover, but nothing of the last keep ms.
-- A worker whose snapshot is older than most ms loses its place.
local function trim(shard, keep, most)
  local low = redis.call('ZRANGE', p .. 'wm:' .. shard, 0, 0, 'WITHSCORES')
  local min = ms - keep
  if low[2] then min = math.min(min, tonumber(low[2])) end
  if min < ms - most then
    min = ms - most
    for _, w in ipairs(redis.call('ZRANGEBYSCORE', p .. 'wm:' .. shard, '-inf', '(' .. int(min), 'LIMIT', 0, 64)) do
      redis.call('UNLINK', p .. 'c:' .. w)
      redis.call('ZREM', p .. 'wm:' .. shard, w)
    end
  end
  redis.call('XTRIM', p .. 'e:' .. shard, 'MINID', '~', int(min) .. '-0')
end

-- alive notes that somebody was heard, and returns until when leases do not end.
local function alive()
  local state = redis.call('HMGET', log, 'beat', 'mercy')
  local beat, mercy = tonumber(state[1] or '0'), tonumber(state[2] or '0')
  if beat > 0 and ms - beat > SILENCE then
    mercy = ms + MERCY
    redis.call('HSET', log, 'mercy', int(mercy))
  end
  if ms - beat > 200 then redis.call('HSET', log, 'beat', int(ms)) end
  return mercy
end

-- full says whether the server takes no new data for want of memory. It must be asked
-- before the script's first write: after that the server takes all.
local function full()
  local reply = redis.pcall('HSET', log, 'room', '1')
  return type(reply) == 'table' and reply.err and string.find(reply.err, 'OOM', 1, true) ~= nil
end

-- spare lets no lease end for MERCY ms: nobody can renew one now.
local function spare() redis.call('HSET', log, 'mercy', int(ms + MERCY)) end

-- tend ends leases, at most some at once, and keeps the pool's keys for ttl ms.
local function tend(most, ttl)
  for _, k in ipairs({log, p .. 'reg', p .. 'hello', p .. 'now'}) do redis.call('PEXPIRE', k, ttl) end
  for i = 0, SHARDS - 1 do
    redis.call('PEXPIRE', p .. 'e:' .. i, ttl)
    redis.call('PEXPIRE', p .. 'wm:' .. i, ttl)
  end
  for i = 0, RING - 1 do redis.call('PEXPIRE', p .. 'l:' .. i, ttl) end
  if ms <= alive() then return end
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', p .. 'reg', '-inf', int(ms), 'LIMIT', 0, most)) do
    local shard = string.sub(member, 1, 1)
    add(shard, last(shard), 'b', shardless(member), 'why', 'lease')
    leave(member)
  end
end
