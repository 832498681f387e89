#!/bin/sh
# Starts PostgreSQL; on an empty volume first makes the cluster, its superuser and its database, on a
# socket alone, so that whoever asks over TCP meets the real server only.
set -eu

if [ ! -s "$PGDATA/PG_VERSION" ]; then
    # shellcheck disable=SC2086 # the arguments are several words
    initdb --pgdata="$PGDATA" --username="$POSTGRES_USER" \
        --pwfile="$POSTGRES_PASSWORD_FILE" ${POSTGRES_INITDB_ARGS:-} >/dev/null
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    pg_ctl --pgdata="$PGDATA" --wait --silent --options="-c listen_addresses=''" start
    PGPASSWORD=$(cat "$POSTGRES_PASSWORD_FILE") \
        createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl --pgdata="$PGDATA" --wait --silent --mode=fast stop
fi
exec postgres -D "$PGDATA" -c listen_addresses='*'
