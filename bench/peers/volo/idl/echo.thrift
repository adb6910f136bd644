namespace rs echo

struct Message {
    1: required i64 id,
    2: required string name,
    3: required binary payload,
}

service Echo {
    Message echo(1: Message message),
}
