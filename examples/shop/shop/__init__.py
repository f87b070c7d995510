"""A shop that takes orders over HTTP and sends receipts in the background."""
