-- End a pause: the messages wait where they are read, in front of what somebody put there meanwhile.
if redis.call('EXISTS', base .. ':ready') == 1 then
  repeat until not redis.call('LMOVE', base .. ':paused', base .. ':ready', 'RIGHT', 'LEFT')
elseif redis.call('EXISTS', base .. ':paused') == 1 then
  redis.call('RENAME', base .. ':paused', base .. ':ready')
end
redis.call('HDEL', base, 'paused')
return 1
