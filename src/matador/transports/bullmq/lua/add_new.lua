-- In front of the scripts that add a job to a job queue. An id that is taken is refused. BullMQ runs jobs
-- without a priority before all others, we run them last: once a queue has a job with a priority, those
-- without one need the lowest.
-- KEYS: those of the script, then: job, wait, paused, prioritized, pc, meta
-- ARGV: those of the script, then: key prefix of the queue, the lowest priority, priority
-- Returns -101 if the id is taken, -102 if the job needs a priority.
do
  local first = #KEYS - 5
  if redis.call('EXISTS', KEYS[first]) == 1 then return -101 end
  local prefix, lowest, priority, meta = ARGV[#ARGV - 2], ARGV[#ARGV - 1], ARGV[#ARGV], KEYS[#KEYS]
  if priority == '0' then
    if redis.call('HEXISTS', meta, 'matador-priorities') == 1 then return -102 end
  elseif redis.call('HSETNX', meta, 'matador-priorities', 1) == 1 then
    for list = first + 1, first + 2 do
      for _ = 1, 10000 do -- those behind run before all others, once
        local id = redis.call('RPOP', KEYS[list])
        if not id then break end
        local count = redis.call('INCR', KEYS[first + 4]) % 0x100000000
        redis.call('ZADD', KEYS[first + 3], lowest * 0x100000000 + count, id)
        redis.call('HSET', prefix .. id, 'priority', lowest)
      end
    end
  end
end
