-- How many lanes for priorities a queue has.
return queue.levels
