#!/bin/sh
# Counts to COUNT (20), a step a second. Stopped and started again, it goes on where it was.
set -u

count=${COUNT:-20}
# By the job's id: jobs with one working folder share the folder of checkpoints too.
saved=$LONGSHORE_CHECKPOINT_DIR/$LONGSHORE_JOB_ID.step

step=0
if [ -f "$saved" ]; then
    step=$(cat "$saved")
    echo "attempt $LONGSHORE_ATTEMPT goes on after step $step"
fi

save() {
    echo "$step" > "$saved.draft"
    mv "$saved.draft" "$saved"    # as one step: a kill while saving leaves the old checkpoint
}

# The signal reaches `sleep` too, and ends it; the trap runs next, before the step would count.
trap 'save; echo "saved step $step, stopping"; exit 143' TERM

while [ "$step" -lt "$count" ]; do
    sleep 1                       # the work of a step
    step=$((step + 1))
    echo "step $step of $count"
    echo "$step/$count counting" > "$LONGSHORE_PROGRESS_FILE"
done
