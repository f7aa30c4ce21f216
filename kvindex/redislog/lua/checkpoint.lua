-- Makes the uploaded parts the worker's snapshot as of now, or with an empty
-- generation says that the present one is still right. Then trims the shard.
-- ARGV: token expected, shard, worker, generation, parts, lease and margin ms,
-- keep ms, most ms, ttl of the pool's keys, state fields and values of the snapshot.
local expected, shard, worker, generation = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local c = p .. 'c:' .. worker
local id = redis.call('HGET', log, 'id')
local have = redis.call('HMGET', c, 'v', 'id', 'gen')
if not id or have[2] ~= id or have[1] ~= expected then return {0} end
local fields = redis.call('HGETALL', c)
if generation ~= '' then
  redis.call('HSET', c, 'gen', generation, 'parts', ARGV[5])
  for i = 1, #fields, 2 do
    if #fields[i] == 4 and string.sub(fields[i], 1, 1) == 's' then redis.call('HDEL', c, fields[i]) end
  end
  for i = 11, #ARGV, 2 do redis.call('HSET', c, ARGV[i], ARGV[i + 1]) end
  if have[3] and have[3] ~= generation then redis.call('UNLINK', p .. 's:' .. have[3] .. ':' .. worker) end
  redis.call('PEXPIRE', p .. 's:' .. generation .. ':' .. worker, tonumber(ARGV[6]) + tonumber(ARGV[7]))
else
  if not have[3] then return {0} end
  for i = 1, #fields, 2 do
    local f = fields[i]
    if #f == 4 and string.sub(f, 1, 1) == 'o' then
      local s = 's' .. string.sub(f, 2)
      if redis.call('HEXISTS', c, s) == 1 then redis.call('HSET', c, s, string.sub(fields[i + 1], 1, 24)) end
    end
  end
end
local mark = last(shard)
redis.call('HSET', c, 'wm', mark)
redis.call('ZADD', p .. 'wm:' .. shard, int(ms), worker)
trim(shard, tonumber(ARGV[8]), tonumber(ARGV[9]))
tend(4, ARGV[10])
return {1, tonumber(redis.call('HGET', log, 'bytes' .. shard) or '0')}
