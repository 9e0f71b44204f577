# pyright: basic, reportMissingImports=false
# --8<-- [start:program]
from celery import Celery
from celery.schedules import crontab

app = Celery("emails", broker="redis://localhost", backend="redis://localhost")
app.conf.timezone = "Europe/Berlin"
app.conf.beat_schedule = {
    "newsletter": {
        "task": "emails.newsletter",
        "schedule": crontab(minute=0, hour=7),
        "args": ("north",),
    }
}


@app.task(
    autoretry_for=(Exception,), max_retries=4, retry_backoff=1, retry_jitter=False, acks_late=True
)
def welcome(to, lang="en"):
    return f"sent to {to} in {lang}"


@app.task(acks_late=True)
def newsletter(region):
    print(f"newsletter for {region}")


if __name__ == "__main__":
    result = welcome.apply_async(("ada@example.com",), countdown=1)
    print(result.get(timeout=30))
# --8<-- [end:program]
