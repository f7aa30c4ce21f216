-- Once a second from every reader: says where the log is, ends leases, trims one
-- shard. ARGV: id for a new log, keep ms, most ms, ttl of the pool's keys.
local crowded = full()
-- Its first write is one that a full server takes and a replica refuses.
redis.call('PEXPIRE', log, ARGV[4])
if crowded then spare() end
local id = open(ARGV[1])
tend(16, ARGV[4])
trim(math.floor(ms / 1000) % SHARDS, tonumber(ARGV[2]), tonumber(ARGV[3]))
local out = redis.call('HMGET', log, 'members', 'segment')
local reply = {id, int(ms), out[1] or '0', out[2] or '0'}
for i = 0, SHARDS - 1 do reply[#reply + 1] = last(i) end
reply[#reply + 1] = crowded and '1' or '0'
return reply
