import { createHash } from "node:crypto";
import { crc32, gzipSync } from "node:zlib";
import { tar } from "../../images/tar.ts";
import type { Files } from "./web.ts";

const DOS_DATE = 0x5b21;

/** A simple index (PEP 503) with a wheel, and a source distribution that depends on it. */
export function pythonIndex(): Files {
  const wheel = zip({
    "test_words.py": 'WORDS = "hello from a wheel"\n',
    "test_words-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: test-words\nVersion: 1.0\n",
    "test_words-1.0.dist-info/WHEEL":
      "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "test_words-1.0.dist-info/RECORD":
      "test_words.py,,\ntest_words-1.0.dist-info/METADATA,,\ntest_words-1.0.dist-info/WHEEL,,\ntest_words-1.0.dist-info/RECORD,,\n",
  });
  const setup = [
    "from setuptools import setup",
    'setup(name="test-greeting", version="2.0", py_modules=["test_greeting"], install_requires=["test-words"])',
  ];
  const source = gzipSync(
    tar([
      { path: "test-greeting-2.0/setup.py", content: `${setup.join("\n")}\n` },
      { path: "test-greeting-2.0/PKG-INFO", content: "Metadata-Version: 2.1\nName: test-greeting\nVersion: 2.0\n" },
      {
        path: "test-greeting-2.0/test_greeting.py",
        content: "import test_words\n\ndef greet():\n    print(test_words.WORDS)\n",
      },
    ]),
  );
  const packages = { "test_words-1.0-py3-none-any.whl": wheel, "test-greeting-2.0.tar.gz": source };
  const page = (name: keyof typeof packages): string => {
    const digest = createHash("sha256").update(packages[name]).digest("hex");
    return `<!DOCTYPE html><html><body><a href="../../packages/${name}#sha256=${digest}">${name}</a></body></html>`;
  };
  return {
    "simple/test-words/": page("test_words-1.0-py3-none-any.whl"),
    "simple/test-greeting/": page("test-greeting-2.0.tar.gz"),
    ...Object.fromEntries(Object.entries(packages).map(([name, content]) => [`packages/${name}`, content])),
  };
}

/** An archive with uncompressed entries. */
function zip(entries: Readonly<Record<string, string>>): Buffer {
  const local: Buffer[] = [];
  const central: Buffer[] = [];
  let offset = 0;
  for (const [name, text] of Object.entries(entries)) {
    const content = Buffer.from(text);
    // Version, flags, method, time and date, sum, both sizes, length of the name, of the extra field.
    const common = Buffer.alloc(26);
    common.writeUInt16LE(20, 0);
    common.writeUInt16LE(DOS_DATE, 8);
    common.writeUInt32LE(crc32(content), 10);
    common.writeUInt32LE(content.length, 14);
    common.writeUInt32LE(content.length, 18);
    common.writeUInt16LE(name.length, 22);
    const entry = Buffer.concat([Buffer.from("PK\x03\x04"), common, Buffer.from(name), content]);
    // Length of the comment, disk, attributes inside and outside, offset.
    const more = Buffer.alloc(14);
    more.writeUInt32LE((0o100_644 << 16) >>> 0, 6);
    more.writeUInt32LE(offset, 10);
    central.push(Buffer.concat([Buffer.from("PK\x01\x02\x14\x03"), common, more, Buffer.from(name)]));
    local.push(entry);
    offset += entry.length;
  }
  const directory = Buffer.concat(central);
  const end = Buffer.alloc(22);
  end.write("PK\x05\x06", "latin1");
  end.writeUInt16LE(central.length, 8);
  end.writeUInt16LE(central.length, 10);
  end.writeUInt32LE(directory.length, 12);
  end.writeUInt32LE(offset, 16);
  return Buffer.concat([...local, directory, end]);
}
