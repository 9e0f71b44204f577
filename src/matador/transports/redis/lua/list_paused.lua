-- Whether a queue is paused.
return is_paused(base) and 1 or 0
