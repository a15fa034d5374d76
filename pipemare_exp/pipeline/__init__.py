"""What a pipeline is: schedules, versions, stages and the engines that execute them; knows no task and no logging."""
