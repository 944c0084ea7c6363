"""The job specs that are installed; `t5x_lite launch --config=NAME`."""
