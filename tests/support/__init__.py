"""What several tests share: small models, and data for them."""
