"""Images with labels, a batch source of them, and the network that reads them."""
