-- Once a second from every reader: says where the log is, ends leases, trims one
-- shard. ARGV: id for a new log, keep ms, most ms, ms of silence after which nobody
-- is taken for gone, for how long then, ttl of the pool's keys.
local keep, most = tonumber(ARGV[2]), tonumber(ARGV[3])
local id = open(ARGV[1])
-- The first write must be one that also a full server takes and a replica refuses.
for _, k in ipairs({log, p .. 'reg', p .. 'hello', p .. 'now'}) do redis.call('PEXPIRE', k, ARGV[6]) end
for i = 0, SHARDS - 1 do
  redis.call('PEXPIRE', p .. 'e:' .. i, ARGV[6])
  redis.call('PEXPIRE', p .. 'wm:' .. i, ARGV[6])
end
for i = 0, RING - 1 do redis.call('PEXPIRE', p .. 'l:' .. i, ARGV[6]) end
local state = redis.call('HMGET', log, 'beat', 'mercy')
local mercy = tonumber(state[2] or '0')
if state[1] and ms - tonumber(state[1]) > tonumber(ARGV[4]) then
  mercy = ms + tonumber(ARGV[5])
  redis.call('HSET', log, 'mercy', int(mercy))
end
redis.call('HSET', log, 'beat', int(ms))
if ms > mercy then
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', p .. 'reg', '-inf', int(ms), 'LIMIT', 0, 16)) do
    local shard = string.sub(member, 1, 1)
    add(shard, last(shard), 'b', shardless(member))
    leave(member)
  end
end
trim(math.floor(ms / 1000) % SHARDS, keep, most)
local out = redis.call('HMGET', log, 'members', 'segment')
local reply = {id, int(ms), out[1] or '0', out[2] or '0'}
for i = 0, SHARDS - 1 do reply[#reply + 1] = last(i) end
return reply
