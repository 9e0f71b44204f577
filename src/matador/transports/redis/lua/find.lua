-- The settings of a queue: levels and retention; nil if there is no such queue.
local queue = settings(KEYS[1])
if not queue then
  return nil
end
return { queue.levels, queue.retention or -1 }
