-- Pause a queue: its messages wait where nobody reads.
redis.call('HSET', base, 'paused', '1')
if redis.call('EXISTS', base .. ':paused') == 1 then
  repeat until not redis.call('LMOVE', base .. ':ready', base .. ':paused', 'LEFT', 'RIGHT')
elseif redis.call('EXISTS', base .. ':ready') == 1 then
  redis.call('RENAME', base .. ':ready', base .. ':paused')
end
return 1
