# pyright: basic, reportMissingImports=false
# --8<-- [start:program]
from emails import newsletter
from rq import cron

cron.register(newsletter, queue_name="emails", args=("north",), cron="0 7 * * *")
# --8<-- [end:program]
