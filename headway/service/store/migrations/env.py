"""What Alembic runs: it migrates the connection that `database.migrate` has opened."""

from alembic import context

# Whoever opened it has the lock, and commits: a schema is changed whole or not at all.
context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
