"""Programs of jobs, in Python, that several tests run."""

COUNTS_STOPS = """
import signal, time
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
print("ready", flush=True)
while not heard:
    time.sleep(0.05)
time.sleep(0.5)
print("heard", len(heard), flush=True)
"""
"""Says how often it got SIGTERM, half a second after the first."""
