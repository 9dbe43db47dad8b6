import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { createHash } from "node:crypto";
import { BusyboxCommands } from "../../support/appliance/busybox-commands.ts";
import { type Body, download, list, names, type RunResult, resultOf, upload } from "../../support/runs.ts";

setDefaultTimeout(120_000);

const box = new BusyboxCommands();
const { shell } = box;
/** A run whose files are captured. */
const change = async (from: string, command: string, more: Body = {}): Promise<RunResult & { image: string }> => {
  const result = resultOf(await box.appliance.run(from, command, more));
  if (result.exit_code !== 0) throw new Error(`${command}: ${result.err}`);
  return result as RunResult & { image: string };
};
const refusal = async (files: Body) => {
  const response = await box.appliance.post("/instances", { image: box.image, command: "true", files });
  return [response.status, ((await response.json()) as Body)["error"]];
};
const failure = async (request: Body) => {
  const operation = await box.appliance.finished(
    await box.appliance.spawn({ image: box.image, command: "true", ...request }),
  );
  return [operation.status, (operation as unknown as { error?: Body }).error?.["error"]];
};

describe("POST /instances files", () => {
  // spec: instances.files
  test.concurrent("parents are created (0755, root); the mode is 0644 unless given; the owner is root", async () => {
    const uuid = await upload(box.appliance, "content\n");
    const files = {
      "/a/b/c/plain": { uuid },
      "/a/private": { uuid, mode: "0600" },
      "/a/set": { uuid, mode: "6755" },
      "/a/none": { uuid, mode: "0000" },
      "/a/sticky": { uuid, mode: "1777" },
      "/ünï cödé\n2": { uuid, mode: "0640" },
    };
    const result = await change(box.image, "cat /a/b/c/plain; umask", { files });
    expect(result.out).toBe("content\n0022\n");
    const seen = Object.fromEntries(
      (await list(box.appliance, result.image, "/a")).map((item) => [item["name"], item]),
    );
    expect(seen["b"]).toMatchObject({ mode: "0755", type: "directory", uid: 0, gid: 0 });
    expect(seen["private"]).toMatchObject({ mode: "0600", is_regular: true, uid: 0, gid: 0, size: 8 });
    expect([seen["set"]?.["mode"], seen["none"]?.["mode"], seen["sticky"]?.["mode"]]).toEqual(["6755", "0000", "1777"]);
    expect(await list(box.appliance, result.image, "/a/b/c")).toMatchObject([{ name: "plain", mode: "0644" }]);
    expect(await names(box.appliance, result.image, "/")).toContain("ünï cödé\n2");
    expect(await names(box.appliance, box.image, "/")).not.toContain("a");
  });

  test.concurrent("a file of the image gets new content, mode and owner; the parent image keeps its own", async () => {
    const uuid = await upload(box.appliance, "root:x:0:0:new:/root:/bin/sh\n");
    const result = await change(box.image, "cat /etc/passwd; stat -c '%a %u %g' /etc/shadow", {
      files: { "/etc/passwd": { uuid, mode: "0600" }, "/etc/shadow": { uuid } },
    });
    expect(result.out).toBe("root:x:0:0:new:/root:/bin/sh\n644 0 0\n");
    expect(await (await download(box.appliance, box.image, "/etc/passwd")).text()).toContain("nobody");
  });

  test.concurrent("symlinks of the image are resolved inside the guest, with the image as their root", async () => {
    const uuid = await upload(box.appliance, "through\n");
    const script =
      "mkdir -p /real; ln -s /real /abs; ln -s ../../../../real /etc/up; ln -s /real/new /file; ln -s /loop /loop";
    const links = await change(box.image, script);
    const result = await change(links.image, "cat /real/one /real/two /real/new", {
      files: { "/abs/one": { uuid }, "/etc/up/two": { uuid }, "/file": { uuid } },
    });
    expect(result.out).toBe("through\n".repeat(3));
    expect(await names(box.appliance, result.image, "/real")).toEqual(["new", "one", "two"]);
    const spawn = { image: links.image, files: { "/loop/x": { uuid } } };
    expect(await failure(spawn)).toEqual(["FAILED", "invalid_path"]);
  });

  test.concurrent("a path that is a directory, or below a file, ends FAILED invalid_path", async () => {
    const uuid = await upload(box.appliance, "x");
    for (const path of ["/etc", "/etc/passwd/x", "/bin/"]) {
      expect(await failure({ files: { [path]: { uuid } } })).toEqual(["FAILED", "invalid_path"]);
    }
  });

  test.concurrent("a path of a FIFO or a device, or below a dangling link, ends FAILED invalid_path", async () => {
    const uuid = await upload(box.appliance, "x");
    const odd = await change(box.image, "mkfifo /fifo; mknod /null c 1 3; ln -s /fifo /link; ln -s /none /gone");
    for (const path of ["/fifo", "/null", "/link", "/gone/x"]) {
      expect(await failure({ image: odd.image, files: { [path]: { uuid } } })).toEqual(["FAILED", "invalid_path"]);
    }
  });

  test.concurrent("no file can be placed below /proc, /sys and /dev, which are not part of the image", async () => {
    const uuid = await upload(box.appliance, "x");
    for (const path of ["/dev/file", "/proc/sys/kernel/hostname", "/sys/x"]) {
      expect(await failure({ files: { [path]: { uuid } } })).toEqual(["FAILED", "invalid_path"]);
    }
  });

  // spec: instances.files, errors.422
  test.concurrent("a path that is relative, has NUL or .., is / or over-long: 422 invalid_path", async () => {
    const uuid = await upload(box.appliance, "x");
    const paths = [
      "a",
      "",
      "./a",
      "/a/../b",
      "/..",
      "/a\0b",
      "/",
      "//",
      `/${"d/".repeat(2048)}x`,
      `/${"n".repeat(256)}`,
    ];
    for (const path of paths)
      expect([path, ...(await refusal({ [path]: { uuid } }))]).toEqual([path, 422, "invalid_path"]);
  });

  test.concurrent("a mode that is not four octal digits, or two spellings of one path: 400", async () => {
    const uuid = await upload(box.appliance, "x");
    for (const mode of ["644", "0888", "00644", "rw", 420, ""]) {
      expect(await refusal({ "/a": { uuid, mode } })).toEqual([400, "validation_error"]);
    }
    expect(await refusal({ "/a": { uuid }, "//a": { uuid } })).toEqual([400, "validation_error"]);
    expect(await refusal({ "/a": { uuid: "no-uuid" } })).toEqual([400, "validation_error"]);
  });

  test.concurrent("the longest path and name, an empty file, a large one and a thousand at once arrive whole", async () => {
    const large = Buffer.alloc(40_000_000, "0123456789abcdef-");
    const [small, empty, big] = await Promise.all(
      ["x", "", large].map((content) => upload(box.appliance, content as Uint8Array<ArrayBuffer>)),
    );
    const deep = `/${`${"d".repeat(100)}/`.repeat(40)}${"f".repeat(55)}`;
    expect(Buffer.byteLength(deep)).toBe(4096);
    const name = `/${"n".repeat(255)}`;
    const many = Object.fromEntries(Array.from({ length: 1000 }, (_, index) => [`/many/${index}`, { uuid: small }]));
    const files = {
      [deep.slice(0, -1)]: { uuid: small },
      [name]: { uuid: small },
      "/empty": { uuid: empty },
      "/big": { uuid: big },
      ...many,
    };
    const result = await shell(
      `cat ${name}; wc -c </empty; sha256sum </big; ls /many | wc -l; find /d* -type f | wc -c`,
      { files },
    );
    const sum = createHash("sha256").update(large).digest("hex");
    expect(result.out).toBe(`x0\n${sum}  -\n1000\n4096\n`);
  });

  test.concurrent("files of another account are 404", async () => {
    const token = await box.appliance.createToken("other");
    const response = await box.appliance.fetch("/files", { method: "POST", body: "theirs", token });
    const { uuid } = (await response.json()) as { uuid: string };
    expect(await refusal({ "/a": { uuid } })).toEqual([404, "not_found"]);
  });
});

describe("the guest file system", () => {
  test.concurrent("/tmp, /run and /var/tmp are part of the image", async () => {
    const result = await change(box.image, "for d in /tmp /run /var/tmp; do echo $d > $d/kept; done");
    for (const directory of ["/tmp", "/run", "/var/tmp"]) {
      expect(await (await download(box.appliance, result.image, `${directory}/kept`)).text()).toBe(`${directory}\n`);
    }
  });

  test.concurrent("/proc, /sys, /dev, /dev/shm and /dev/pts are not: writing there changes nothing", async () => {
    const command =
      "echo x > /dev/shm/x; echo y > /dev/y; mkdir /dev/shm/d; test -e /sys/kernel; ls /dev/pts; echo done";
    const result = resultOf(await box.appliance.run(box.image, command));
    expect(result).toMatchObject({ exit_code: 0, image: box.image });
    for (const path of ["/dev", "/proc", "/sys"]) expect(await list(box.appliance, box.image, path)).toEqual([]);
  });

  test.concurrent("/dev has only null, zero, full, random, urandom, tty, ptmx, fd and the like, which work", async () => {
    const result = await shell(
      [
        "ls /dev; echo x > /dev/null; echo x > /dev/full; head -c 4 /dev/zero | od -An -tx1",
        "head -c 8 /dev/urandom | wc -c; echo via-fd > /dev/stdout; echo $(cat /dev/fd/0)",
      ].join("\n"),
      { stdin: "in" },
    );
    const seen = result.out.split("\n");
    const devices = [
      "fd",
      "full",
      "null",
      "ptmx",
      "pts",
      "random",
      "shm",
      "stderr",
      "stdin",
      "stdout",
      "tty",
      "urandom",
      "zero",
    ];
    expect(seen.slice(0, devices.length)).toEqual(devices);
    expect(seen.slice(devices.length)).toEqual([" 00 00 00 00", "8", "via-fd", "in", ""]);
    expect(result.err).toContain("No space left");
  });

  test.concurrent("device nodes and set-ID bits of the image are kept, but nodes cannot be opened", async () => {
    const result = await shell(
      "mknod /root/disk b 8 0; mknod /root/mem c 1 1; cat /root/disk; cat /root/mem; ls /dev/sd* | wc -l",
    );
    expect(result.out).toBe("0\n");
    expect(result.err).toMatch(/disk.*Permission denied/);
    expect(result.err).toMatch(/mem.*Permission denied/);
  });

  test.concurrent("a run without changes gives the input image; a change of metadata or a removal gives a new one", async () => {
    const unchanged = [
      "true",
      "cat /etc/passwd",
      "ls -lR / >/dev/null",
      "echo x > /dev/shm/x",
      "touch -c /no/such/file",
    ];
    const changed = ["chmod 600 /etc/hosts", "rm /etc/hosts", "touch /root/new", "mkdir /root/d", "chown 1 /etc/group"];
    const image0 = async (command: string) => (await change(box.image, `${command}; :`)).image;
    expect(await Promise.all(unchanged.map(image0))).toEqual(unchanged.map(() => box.image));
    const images = await Promise.all(changed.map(image0));
    expect(new Set([box.image, ...images]).size).toBe(images.length + 1);
    expect(await names(box.appliance, images[1] ?? "", "/etc")).not.toContain("hosts");
    expect(await names(box.appliance, box.image, "/etc")).toContain("hosts");
  });

  // spec: service.branch
  test.concurrent("lineage: a chain of changes is a chain of images, each readable and runnable", async () => {
    const first = await change(box.image, "mkdir /root/d; echo 1 > /root/d/a");
    const second = await change(first.image, "rm -r /root/d; mkdir /root/d; echo 2 > /root/d/b");
    const third = await change(second.image, "mv /root/d/b /root/d/c; ln -s c /root/d/l; echo 3 >> /root/d/c");
    expect(await names(box.appliance, first.image, "/root/d")).toEqual(["a"]);
    expect(await names(box.appliance, second.image, "/root/d")).toEqual(["b"]);
    expect(await names(box.appliance, third.image, "/root/d")).toEqual(["c", "l"]);
    expect(await (await download(box.appliance, third.image, "/root/d/l")).text()).toBe("2\n3\n");
    expect((await shell("cat /root/d/*", { image: third.image })).out).toBe("2\n3\n2\n3\n");
  });

  test.concurrent("the clock is the host's, and random numbers differ between clones of one template", async () => {
    const [a, b] = await Promise.all(
      [1, 2].map(() => shell("date +%s; head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid")),
    );
    const [seconds, ...random] = (a?.out ?? "").split("\n");
    expect(Math.abs(Number(seconds) - Date.now() / 1000)).toBeLessThan(60);
    expect(random).not.toEqual((b?.out ?? "").split("\n").slice(1));
  });
});
