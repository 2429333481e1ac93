"""What a user can do beside training and evaluating. A tool imports the trunk, and no other tool."""
