"""Starting runs of several processes; installed as `t5x_lite.launch`."""
