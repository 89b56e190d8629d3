"""What runs on the servers: the wire, the device, the experts, the request flow, frameworks and schedulers."""
