"""The only code with sockets, processes and clocks. It records facts and judges nothing."""
