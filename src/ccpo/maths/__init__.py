"""The mathematics of the methods: pure functions of arrays, without input, output or state."""
