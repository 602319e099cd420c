"""Tables and figures, made from episode tables only."""
