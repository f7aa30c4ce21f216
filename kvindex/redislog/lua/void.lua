-- Takes their place from the workers of a shard whose snapshot was made up to a
-- time, and from one more: they will write all anew. ARGV: shard, ms, worker.
local wm = p .. 'wm:' .. ARGV[1]
local list = redis.call('ZRANGEBYSCORE', wm, '-inf', ARGV[2], 'LIMIT', 0, 64)
if ARGV[3] ~= '' then list[#list + 1] = ARGV[3] end
for _, w in ipairs(list) do
  redis.call('UNLINK', p .. 'c:' .. w)
  redis.call('ZREM', wm, w)
end
return #list
