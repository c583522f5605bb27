"""Options and checks that several commands share."""
