"""Tables, figures and the HTML pages: they read results and compute none."""
