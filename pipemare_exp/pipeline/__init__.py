"""What a pipeline is: its shape, schedules, weight versions, methods, and the two engines that train with them.

`method` is what a training method decides, `shape` what a pipeline looks like, `engine` what an engine gives a training
loop; the emulator and the runtime are the two. Imports `errors`, `seeding` and `settings` alone; it knows no task, no
configuration and no run folder. Methods, experiments, benches, GPU checks and figures of costs import it.
"""
