"""The round: who trains, where state lives, how clients run side by side, what is measured and kept."""
