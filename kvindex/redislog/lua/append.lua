-- Writes a worker's records if its state is the one that the writer knows.
-- ARGV: id for a new log, token expected, new token, shard, worker, lease ms,
-- margin ms, ms of the now stream, hello, load, bye (1 or 0), n state fields and
-- values, n entries, n entries for now, n learned parts.
local candidate, expected, token, shard, worker = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local lease, margin, recent = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local hello, load, bye = ARGV[9], ARGV[10], ARGV[11]
local c, member = p .. 'c:' .. worker, shard .. worker

local id = redis.call('HGET', log, 'id')
local have = redis.call('HMGET', c, 'v', 'id', 'gen')
local known = id and have[1] and have[2] == id
if (known and have[1] or '') ~= expected then
  if known then return {0, id, redis.call('HGETALL', c)} end
  return {0, id or '', {}}
end
id = open(candidate)
local before = last(shard)
if not known then
  redis.call('HSET', c, 'id', id, 'wm', before)
  if have[3] then redis.call('HDEL', c, 'gen', 'parts') end
  redis.call('ZADD', p .. 'wm:' .. shard, int(ms), worker)
end

local at = 12
local function list()
  local n, from = tonumber(ARGV[at]), at + 1
  at = from + n
  return from, at - 1
end
local from, to = list()
redis.call('HSET', c, 'v', token, unpack(ARGV, from, to))
if load ~= '' then redis.call('HSET', c, 'load', load) end
local bytes = 0
from, to = list()
for i = from, to do
  before = add(shard, before, 'd', ARGV[i])
  bytes = bytes + #ARGV[i]
end
local total = redis.call('HINCRBY', log, 'bytes' .. shard, bytes)
from, to = list()
for i = from, to do
  redis.call('XADD', p .. 'now', 'MINID', '~', int(ms - recent) .. '-0', '*', 'd', ARGV[i])
end
from, to = list()
for i = from, to do
  local full = tonumber(ARGV[to + 1])
  local ring = redis.call('HMGET', log, 'segment', 'learned')
  local segment, size = tonumber(ring[1] or '0'), tonumber(ring[2] or '0')
  if size >= full then
    segment, size = (segment + 1) % RING, 0
    redis.call('UNLINK', p .. 'l:' .. segment)
  end
  redis.call('RPUSH', p .. 'l:' .. segment, ARGV[i])
  redis.call('HSET', log, 'segment', segment, 'learned', size + #ARGV[i])
end

if bye == '1' then
  leave(member)
  return {1, id, before, total}
end
if hello ~= '' and redis.call('HGET', p .. 'hello', worker) ~= hello then
  redis.call('HSET', p .. 'hello', worker, hello)
  redis.call('HINCRBY', log, 'members', 1)
end
redis.call('ZADD', p .. 'reg', int(ms + lease), member)
redis.call('PEXPIRE', c, lease + margin)
if have[3] then redis.call('PEXPIRE', p .. 's:' .. have[3] .. ':' .. worker, lease + margin) end
alive()
return {1, id, before, total}
