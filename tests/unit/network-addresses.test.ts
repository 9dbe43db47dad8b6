import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { type AddressKind, addressBytes, addressKind, addressText, isInRange } from "../../src/network/addresses.ts";

type Bytes = readonly [number, number, number, number];
const bytesOf = (address: string): Bytes => address.split(".").map(Number) as unknown as Bytes;
const hex = (high = 0, low = 0): string => ((high << 8) | low).toString(16);
const two = ([a, b, c, d]: Bytes): string => `${hex(a, b)}:${hex(c, d)}`;
const not = ([a, b, c, d]: Bytes): Bytes => [a ^ 255, b ^ 255, c ^ 255, d ^ 255];
const OPEN: Bytes = [8, 8, 8, 8];

const KINDS: readonly AddressKind[] = [
  "metadata",
  "link-local",
  "loopback",
  "private",
  "multicast",
  "reserved",
  "public",
];
const rank = (kind: AddressKind): number => KINDS.indexOf(kind);

/** The forms in which an IPv6 address can embed an IPv4 address. */
const EMBEDDINGS: Readonly<Record<string, (bytes: Bytes) => string>> = {
  mapped: (bytes) => `::ffff:${two(bytes)}`,
  "mapped, in full": (bytes) => `0:0:0:0:0:ffff:${two(bytes)}`,
  "mapped, with zeros and in capitals": (bytes) => `0000:0000:0000:0000:0000:FFFF:${two(bytes).toUpperCase()}`,
  "mapped, in dots": (bytes) => `::ffff:${bytes.join(".")}`,
  "mapped, in full and dots": (bytes) => `0:0:0:0:0:FFFF:${bytes.join(".")}`,
  "mapped, with a zone": (bytes) => `::ffff:${two(bytes)}%eth0`,
  compatible: (bytes) => `::${bytes.join(".")}`,
  translated: (bytes) => `::ffff:0:${two(bytes)}`,
  NAT64: (bytes) => `64:ff9b::${two(bytes)}`,
  "NAT64, in dots": (bytes) => `64:ff9b::${bytes.join(".")}`,
  "6to4": (bytes) => `2002:${two(bytes)}::`,
  "6to4, a host behind it": (bytes) => `2002:${two(bytes)}:1:2:3:4:5`,
  "Teredo, its server": (bytes) => `2001:0:${two(bytes)}:8000:63bf:${two(not(OPEN))}`,
  "Teredo, its client": (bytes) => `2001:0:${two(OPEN)}:8000:63bf:${two(not(bytes))}`,
  ISATAP: (bytes) => `2600:1:2:3:0:5efe:${two(bytes)}`,
  "ISATAP, unique": (bytes) => `2600:1:2:3:200:5efe:${bytes.join(".")}`,
  "ISATAP behind 6to4": (bytes) => `2002:${two(OPEN)}:1:0:5efe:${two(bytes)}`,
};

/** The same in forms that depend on the length of the site's prefix. */
const AMBIGUOUS: Readonly<Record<string, (bytes: Bytes) => string>> = {
  "NAT64 of a site, 96 bits": (bytes) => `64:ff9b:1::${bytes.join(".")}`,
  "NAT64 of a site, 96 bits, of a part of it": (bytes) => `64:ff9b:1:fffe::${bytes.join(".")}`,
  "NAT64 of a site, 64 bits": ([a, b, c, d]) => `64:ff9b:1::${hex(0, a)}:${hex(b, c)}:${hex(d, 0)}:0`,
  "NAT64 of a site, 56 bits": ([a, b, c, d]) => `64:ff9b:1:${hex(0, a)}:${hex(0, b)}:${hex(c, d)}:0:0`,
  "NAT64 of a site, 48 bits": ([a, b, c, d]) => `64:ff9b:1:${hex(a, b)}:${hex(0, c)}:${hex(d, 0)}:0:0`,
};

const PLAIN: Readonly<Record<string, AddressKind>> = {
  "127.0.0.1": "loopback",
  "127.255.0.9": "loopback",
  "169.254.1.1": "link-local",
  "169.254.169.253": "link-local",
  "169.254.169.254": "metadata",
  "169.254.170.2": "metadata",
  "169.254.170.23": "metadata",
  "100.100.100.200": "metadata",
  "168.63.129.16": "metadata",
  "192.0.0.192": "metadata",
  "10.0.0.1": "private",
  "172.16.0.1": "private",
  "172.31.255.255": "private",
  "192.168.1.1": "private",
  "100.64.0.1": "private",
  "100.127.255.255": "private",
  "192.0.2.1": "reserved",
  "198.19.255.255": "reserved",
  "203.0.113.5": "reserved",
  "240.0.0.1": "reserved",
  "255.255.255.255": "reserved",
  "224.0.0.1": "multicast",
  "239.255.255.255": "multicast",
};

describe("an IPv4 address", () => {
  test("has its kind of the table", () => {
    for (const [address, kind] of Object.entries(PLAIN))
      expect([address, addressKind(address)]).toEqual([address, kind]);
    for (const address of ["0.0.0.0", "0.1.2.3"]) expect(addressKind(address)).toBe("unspecified");
  });

  test("is public next to ranges that are not", () => {
    const neighbours = ["1.0.0.0", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255"];
    const more = ["128.0.0.0", "168.63.129.15", "168.63.129.17", "169.253.255.255", "169.255.0.0", "172.15.255.255"];
    const last = [
      "172.32.0.0",
      "192.0.1.0",
      "192.167.255.255",
      "192.169.0.0",
      "198.17.255.255",
      "198.20.0.0",
      "223.255.255.255",
    ];
    for (const address of [...neighbours, ...more, ...last])
      expect([address, addressKind(address)]).toEqual([address, "public"]);
  });
});

describe("an IPv6 address", () => {
  for (const [name, embed] of Object.entries(EMBEDDINGS)) {
    test(`has the kind of the IPv4 address that it embeds: ${name}`, () => {
      for (const [address, kind] of Object.entries(PLAIN)) {
        const wrapped = embed(bytesOf(address));
        expect([wrapped, addressKind(wrapped)]).toEqual([wrapped, kind]);
      }
      expect([name, addressKind(embed(OPEN))]).toEqual([name, "public"]);
    });
  }

  for (const [name, embed] of Object.entries(AMBIGUOUS)) {
    test(`is not more public than the IPv4 address that it may embed: ${name}`, () => {
      for (const [address, kind] of Object.entries(PLAIN)) {
        const wrapped = embed(bytesOf(address));
        expect([wrapped, rank(addressKind(wrapped)) <= rank(kind)]).toEqual([wrapped, true]);
      }
    });
  }

  test("of a site's NAT64 is public if all addresses that it may embed are public", () => {
    expect(addressKind("64:ff9b:1::8.8.8.8")).toBe("public");
    expect(addressKind("64:ff9b:1:808:8:800::")).toBe("public");
  });

  test("has its kind of the table in every spelling", () => {
    for (const [address, kind] of [
      ["::", "unspecified"],
      ["0:0:0:0:0:0:0:0", "unspecified"],
      ["::ffff:0.0.0.0", "unspecified"],
      ["64:ff9b:1::", "unspecified"],
      ["::1", "loopback"],
      ["0:0:0:0:0:0:0:1", "loopback"],
      ["0000:0000:0000:0000:0000:0000:0000:0001", "loopback"],
      ["::0.0.0.1", "loopback"],
      ["fe80::1", "link-local"],
      ["fe80::1%eth0", "link-local"],
      ["FEBF::1", "link-local"],
      ["fe80::a9fe:a9fe", "link-local"],
      ["fd00:ec2::254", "metadata"],
      ["FD00:0EC2:0:0:0:0:0:0254", "metadata"],
      ["fd00:ec2::23", "metadata"],
      ["fd00:c1::a9fe:a9fe", "metadata"],
      ["fd00:a9fe:a9fe::1", "metadata"],
      ["fd00:100::100:200", "metadata"],
      ["fd20:ce::254", "metadata"],
      ["fd20:00ce:0000::0000:0254", "metadata"],
      ["fd00:42::42", "metadata"],
      ["fd00:ec2::255", "private"],
      ["fd00::1", "private"],
      ["fc00::1", "private"],
      ["fec0::1", "private"],
      ["fdff:ffff:ffff::5efe:127.0.0.1", "loopback"],
      ["ff02::1", "multicast"],
      ["2001:db8::1", "reserved"],
      ["100::1", "reserved"],
      ["2606:4700::1111", "public"],
      ["2001:4860:4860::8888", "public"],
      ["2003::7f00:1", "public"],
      ["64:ff9a::127.0.0.1", "public"],
      ["fbff::1", "public"],
    ] as const) {
      expect([address, addressKind(address)]).toEqual([address, kind]);
    }
  });
});

test("an address is not more public in another form", () => {
  const byte = fc.nat({ max: 255 });
  const embedding = fc.constantFrom(...Object.values(EMBEDDINGS), ...Object.values(AMBIGUOUS));
  void fc.assert(
    fc.property(fc.tuple(byte, byte, byte, byte), embedding, (bytes, embed) => {
      const plain = addressKind(bytes.join("."));
      return plain === "unspecified" || rank(addressKind(embed(bytes))) <= rank(plain);
    }),
  );
});

test("texts that are not addresses have no kind", () => {
  for (const text of [
    "",
    "localhost",
    "127.1",
    "0x7f.0.0.1",
    "2130706433",
    "0177.0.0.1",
    "[::1]",
    "::1%",
    "1::2::3",
    "127.0.0.1.",
  ]) {
    expect(() => addressKind(text)).toThrow(TypeError);
  }
});

describe("the text of an address", () => {
  test.each([
    "127.1",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "1.2.3.04",
    "1.2.3.4.",
    "::1.2.3",
    "::ffff:127.1",
    "[::1]",
  ])("%s is refused", (text) => expect(() => addressBytes(text)).toThrow(TypeError));

  test("distinguishes the forms with four decimal numbers", () => {
    const forms = ["::1.2.3.4", "::0:1.2.3.4", "::ffff:1.2.3.4", "64:ff9b::1.2.3.4"];
    expect(forms.map((form) => addressText(addressBytes(form)))).toEqual([
      ...["::102:304", "::102:304", "::ffff:102:304", "64:ff9b::102:304"],
    ]);
  });

  test("names a range of one address, an IPv4 address also in the form of IPv6", () => {
    const targets = ["10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2", "::1"];
    expect(targets.map((address) => isInRange(address, "::ffff:a00:1"))).toEqual([true, true, false, false]);
  });
});
