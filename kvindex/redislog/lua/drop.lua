-- Ends a worker's lease now. ARGV: id for a new log, shard, worker.
open(ARGV[1])
add(ARGV[2], last(ARGV[2]), 'b', ARGV[3])
leave(ARGV[2] .. ARGV[3])
return 1
