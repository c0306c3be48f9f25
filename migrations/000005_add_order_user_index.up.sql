-- The list of a user's orders, newest first.
ALTER TABLE t_order ADD KEY ix_user (user_id, id)
