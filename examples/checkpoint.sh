#!/bin/sh
# Counts to COUNT (20), a step a second. Stopped and started again, it goes on where it was.
set -u

count=${COUNT:-20}
saved=$LONGSHORE_CHECKPOINT_DIR/step    # the folder is this job's own

step=0
if [ -f "$saved" ]; then
    step=$(cat "$saved")
    echo "attempt $LONGSHORE_ATTEMPT goes on after step $step"
fi

save() {
    echo "$step" > "$saved.draft"
    mv "$saved.draft" "$saved"    # as one step: a kill while saving leaves the old checkpoint
    echo "saved, step $step" >> "$LONGSHORE_SAVED"    # now it may be published
}

# The signal reaches `sleep` too, and ends it; the trap runs next, before the step would count.
trap 'save; echo "saved step $step, stopping"; exit 143' TERM
# Asked to save and go on, it does so between two steps.
trap save USR1

while [ "$step" -lt "$count" ]; do
    sleep 1 || continue           # the work of a step; a signal ended it, so it is done again
    step=$((step + 1))
    echo "step $step of $count"
    echo "$step/$count counting" > "$LONGSHORE_PROGRESS_FILE"
done
