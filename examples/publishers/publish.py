#!/usr/bin/python3
"""Publishes jobs to paced from Python: nothing but pika and the contract of the exchange.

    ./publish.py billing --count 3 --lane acme --body '{"hello": "world"}'

Needs pika 1.2 or later: `apt-get install python3-pika` or `pip install pika`.
"""

import argparse
import uuid

import pika

parser = argparse.ArgumentParser(description="publish jobs to paced")
parser.add_argument("downstream", help="the downstream's name: the routing key")
parser.add_argument("--url", default="amqp://127.0.0.1:5672/%2f")
parser.add_argument("--exchange", default="paced.jobs", help="PREFIX.jobs, prefix as in paced.toml")
parser.add_argument("--count", type=int, default=1)
parser.add_argument("--body", default="{}")
parser.add_argument("--lane", help="the tenant or account")
args = parser.parse_args()

connection = pika.BlockingConnection(pika.URLParameters(args.url))
channel = connection.channel()
channel.confirm_delivery()  # from here on basic_publish returns once the broker has the job, or raises

for _ in range(args.count):
    channel.basic_publish(
        exchange=args.exchange,
        routing_key=args.downstream,
        body=args.body.encode(),
        properties=pika.BasicProperties(
            delivery_mode=2,  # persistent: it survives a restart of the broker
            content_type="application/json",
            message_id=str(uuid.uuid4()),  # the Idempotency-Key that the API sees, however often it is tried
            headers={"paced-lane": args.lane} if args.lane else {},
        ),
    )

connection.close()
print(f"published {args.count} job(s) to {args.downstream}")
