"""What the markets show and list: watched, remembered, compared with what is known here."""
