"""The methods: one file each, registered by name."""
