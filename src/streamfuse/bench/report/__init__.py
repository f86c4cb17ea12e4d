"""One page about one bundle: plain and speculative decoding side by side, pass by pass."""
