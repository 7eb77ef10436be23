"""The transaction coordinator: transactional ids, kept as records of `__transaction_state`."""
