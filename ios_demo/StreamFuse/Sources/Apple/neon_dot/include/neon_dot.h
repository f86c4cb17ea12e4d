// Nothing of it is for Swift.
