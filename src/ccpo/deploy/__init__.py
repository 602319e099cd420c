"""What happens to a trained policy: export, calibration, pictures, the playground. One module each."""
