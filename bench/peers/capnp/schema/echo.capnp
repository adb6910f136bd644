@0xd0f9d2c9a4e5b713;

struct Message {
  id @0 :UInt64;
  name @1 :Text;
  payload @2 :Data;
}

interface Echo {
  echo @0 (message :Message) -> (message :Message);
}
