"""Every byte that leaves the process: HTTP, sockets, files, child processes."""
