// A client of AMQP 0-9-1 by hand, as a client's library is not needed for the little that the page's tests and pictures do: it
// connects under a name, publishes with confirms, consumes and settles, all on channel 1.
import { connect } from "node:net";

const METHOD = 1, HEADER = 2, BODY = 3, END = 0xce, CHANNEL = 1;
/** Class and method as one number, as replies are told apart by it. */
const id = (kind, method) => kind * 1000 + method;
const TUNE = id(10, 30), OPEN_OK = id(10, 41), CLOSE = id(10, 50), CHANNEL_CLOSE = id(20, 40), DELIVER = id(60, 60), CONFIRM = id(60, 80);

const u16 = (number) => Buffer.from([number >> 8, number & 255]);
const u32 = (number) => { const bytes = Buffer.alloc(4); bytes.writeUInt32BE(number); return bytes; };
const u64 = (number) => { const bytes = Buffer.alloc(8); bytes.writeBigUInt64BE(BigInt(number)); return bytes; };
const short = (text) => { const bytes = Buffer.from(text); return Buffer.from([bytes.length, ...bytes]); };
const long = (bytes) => Buffer.concat([u32(bytes.length), Buffer.from(bytes)]);
const table = (of) => long(Buffer.concat(Object.entries(of).map(([name, text]) => Buffer.concat([short(name), Buffer.from("S"), long(text)]))));
const frame = (type, channel, payload) => Buffer.concat([Buffer.from([type]), u16(channel), u32(payload.length), payload, Buffer.from([END])]);
const method = (channel, kind, number, ...fields) => frame(METHOD, channel, Buffer.concat([u16(kind), u16(number), ...fields]));

/** Persistent JSON; the flags say which two properties follow. */
const properties = Buffer.concat([u16(0x9000), short("application/json"), Buffer.from([2])]);

export class Client {
  /** Connects to a port of this machine; `name` is what lists of connections show. */
  static open(port, name) {
    const client = new Client();
    return new Promise((resolve, reject) => {
      client.failed = reject;
      client.socket = connect(port, "127.0.0.1", () => client.socket.write("AMQP\0\0\t\x01"));
      client.socket.on("error", reject);
      let held = Buffer.alloc(0);
      client.socket.on("data", (bytes) => {
        held = Buffer.concat([held, bytes]);
        while (held.length >= 8 && held.length >= held.readUInt32BE(3) + 8) {
          const size = held.readUInt32BE(3) + 8, type = held[0], payload = held.subarray(7, size - 1);
          held = held.subarray(size);
          if (type === METHOD) client.#handle(id(payload.readUInt16BE(0), payload.readUInt16BE(2)), payload.subarray(4), name, resolve);
        }
      });
    });
  }

  #waiting = [];
  #handle(number, fields, name, opened) {
    switch (number) {
      case id(10, 10): this.socket.write(method(0, 10, 11, table(name ? { connection_name: name } : {}), short("PLAIN"), long("\0guest\0guest"), short("en_US"))); break;
      // One channel, frames of 128 KiB, no heartbeat.
      case TUNE: this.socket.write(Buffer.concat([method(0, 10, 31, u16(CHANNEL), u32(1 << 17), u16(0)), method(0, 10, 40, short("/"), Buffer.from([0, 0]))])); break;
      case OPEN_OK: opened(this); break;
      case DELIVER: this.onDelivery(Number(fields.readBigUInt64BE(1 + fields[0]))); break;
      case CONFIRM: break;
      case CLOSE: case CHANNEL_CLOSE: this.failed(new Error(`the broker closed ${name}: ${fields.subarray(3, 3 + fields[2])}`)); break;
      default: this.#waiting.shift()?.();
    }
  }
  #ask(kind, number, ...fields) {
    this.socket.write(method(CHANNEL, kind, number, ...fields));
    return new Promise((resolve, reject) => { this.#waiting.push(resolve); this.failed = reject; });
  }

  channel() { return this.#ask(20, 10, short("")); }
  confirm() { return this.#ask(85, 10, Buffer.from([0])); }
  async consume(queue, tag, prefetch, onDelivery) {
    this.onDelivery = onDelivery;
    await this.#ask(60, 10, u32(0), u16(prefetch), Buffer.from([0]));
    await this.#ask(60, 20, u16(0), short(queue), short(tag), Buffer.from([0]), table({}));
  }
  publish(exchange, key, body) {
    this.socket.write(Buffer.concat([
      method(CHANNEL, 60, 40, u16(0), short(exchange), short(key), Buffer.from([0])),
      frame(HEADER, CHANNEL, Buffer.concat([u16(60), u16(0), u64(body.length), properties])),
      frame(BODY, CHANNEL, Buffer.from(body)),
    ]));
  }
  ack(deliveryTag) { this.socket.write(method(CHANNEL, 60, 80, u64(deliveryTag), Buffer.from([0]))); }
  /** Into the dead-letter exchange, or back into the queue. */
  reject(deliveryTag, isRequeued) { this.socket.write(method(CHANNEL, 60, 90, u64(deliveryTag), Buffer.from([isRequeued ? 1 : 0]))); }
  end() { this.failed = () => {}; this.socket.destroy(); }
}
