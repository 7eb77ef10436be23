"""One module per API family, one class per message for all its versions."""
