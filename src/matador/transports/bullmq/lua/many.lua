-- Around a script of BullMQ, named ``one`` here: runs it for many jobs at once. One that fails does not
-- keep others from being handled.
-- KEYS: those of the script
-- ARGV: which of the keys is the job's own (0: none), is the first empty answer the last (1), how many
--       arguments a job has here, how long each of them is, and all of them in one text; the first of a
--       job is its key, the others are those of the script
local place, stops, width = tonumber(ARGV[1]), ARGV[2] == '1', tonumber(ARGV[3])
local lengths, text, answers, from = cmsgpack.unpack(ARGV[4]), ARGV[5], {}, 1
for index = 1, #lengths, width do
  local job = {}
  for part = index, index + width - 1 do
    job[#job + 1] = string.sub(text, from, from + lengths[part] - 1)
    from = from + lengths[part]
  end
  local key = table.remove(job, 1)
  if place > 0 then KEYS[place] = key end
  ARGV = job
  local done, answer = pcall(one)
  if not done then
    local text = type(answer) == 'table' and answer.err or tostring(answer)
    -- Errors of a script name their line, those of the server begin with its word for them.
    if not string.find(text, '^%u+ ') then text = 'ERR ' .. text end
    if string.find(text, '^ERR ') then text = text .. ' in user_script:' .. index end
    answer = {err = text}
  end
  if answer == nil then answer = false end
  answers[#answers + 1] = answer
  if stops and type(answer) == 'table' and type(answer[1]) ~= 'table' then break end
end
return answers
