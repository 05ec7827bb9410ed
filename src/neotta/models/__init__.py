"""Loading classifiers, and finding, exchanging and splitting off their heads."""
