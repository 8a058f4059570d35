"""Replaces Hadoop's local file system in the driver's JVM by one with less work per micro-batch.

*Permissions.* Without Hadoop's native library, Hadoop sets the permissions of every new file on a local disk with a
forked `chmod`. Spark creates a file per source and two more for every micro-batch, and waits for each fork.
`LocalFiles` sets the same permissions with Java's file API. Janino, which Spark ships, compiles the class in the JVM.

*Origins of settings.* Every scan of files sends about a thousand Hadoop settings to its tasks, each with the name of
the file it was read from. Only messages use these names, so they are cleared.

*Known files.* A `Listing` (`new_files`) may leave out files that its caller would ignore; other listings are complete.

Invariant: files, permissions and settings are the same as without the patch. If a class is not as expected, nothing is
changed.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from anabranch.spark.internals.driver import hadoop_settings, jvm_of
from anabranch.spark.internals.patches import are_on

CLASS = "anabranch.LocalFiles"
SOURCE = """
package anabranch;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.io.nativeio.NativeIO;

public final class LocalFiles extends RawLocalFileSystem {
    /** Leaves known files out of one folder, while `isAsking`; `isKnown` is first asked of a name alone. */
    public abstract static class Listing {
        public abstract boolean isOver();

        public abstract boolean isAsking(Path folder);

        public abstract void begin(String[] names);

        public abstract boolean isKnown(String name);

        public abstract boolean isKnown(String name, FileStatus status);
    }

    private final CopyOnWriteArrayList listings = new CopyOnWriteArrayList();
    private final Map classes = new ConcurrentHashMap();

    /** Classes of listings, compiled once for each JVM. */
    public Map classes() {
        return classes;
    }

    public void add(Listing listing) {
        listings.add(listing);
    }

    public int listings() {
        return listings.size();
    }

    public FileStatus[] listStatus(Path folder) throws IOException {
        Iterator each = listings.iterator();
        while (each.hasNext()) {
            Listing listing = (Listing) each.next();
            if (listing.isOver()) {
                listings.remove(listing);
            } else if (listing.isAsking(folder)) {
                FileStatus[] found = unknown(folder, listing);
                return found == null ? super.listStatus(folder) : found;
            }
        }
        return super.listStatus(folder);
    }

    private FileStatus[] unknown(Path folder, Listing listing) throws IOException {
        String[] names = pathToFile(folder).list();
        if (names == null) {
            return null;
        }
        listing.begin(names);
        ArrayList found = new ArrayList();
        for (int i = 0; i < names.length; i++) {
            String name = names[i];
            if (listing.isKnown(name) || name.startsWith(".") && name.endsWith(".crc")) {
                continue;
            }
            try {
                FileStatus status = getFileStatus(new Path(folder, new Path(null, null, name)));
                if (status.isDirectory()) {
                    return null;
                }
                if (!listing.isKnown(name, status)) {
                    found.add(status);
                }
            } catch (FileNotFoundException gone) {
                continue;
            }
        }
        return (FileStatus[]) found.toArray(new FileStatus[0]);
    }

    public void setPermission(Path path, FsPermission wanted) throws IOException {
        if (wanted.getStickyBit() || NativeIO.isAvailable()) {
            super.setPermission(path, wanted);
            return;
        }
        String others = wanted.getGroupAction().SYMBOL + wanted.getOtherAction().SYMBOL;
        String letters = wanted.getUserAction().SYMBOL + others;
        Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(letters));
    }
}
"""
LOCAL = "file:///"
HADOOPS_OWN = "org.apache.hadoop.fs.RawLocalFileSystem"

_at_work = Lock()


def replace_local_files(spark: SparkSession) -> None:
    """Applies the patch once for each JVM, if the session allows it; it affects streams that start later."""
    if not are_on(spark):
        return
    with _at_work, suppress(Py4JError, TypeError):  # the patch is optional
        settings = hadoop_settings(spark)
        _forget_sources(settings)
        _take_over(spark, settings)


def local_files(spark: SparkSession) -> JavaObject | None:
    """Returns the `LocalFiles` object that Hadoop uses for local files; None if it uses another class."""
    jvm = jvm_of(spark)
    files = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI.create(LOCAL), hadoop_settings(spark))
    raw = files.getRaw() if hasattr(files, "getRaw") else None
    return raw if raw is not None and raw.getClass().getName() == CLASS else None


def compiled(spark: SparkSession, name: str, source: str, above: JavaObject) -> JavaObject:
    """Compiles a class in the driver's JVM and returns it; its parent class loader is that of the object `above`."""
    jvm = jvm_of(spark)
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(above.getClass().getClassLoader())
    compiler.cook(source)
    return compiler.getClassLoader().loadClass(name)


def _forget_sources(settings: JavaObject) -> None:
    field = settings.getClass().getDeclaredField("updatingResource")
    field.setAccessible(True)
    sources = field.get(settings)
    if sources is not None:
        sources.clear()


def _take_over(spark: SparkSession, settings: JavaObject) -> None:
    jvm = jvm_of(spark)
    uri = jvm.java.net.URI.create(LOCAL)
    files = jvm.org.apache.hadoop.fs.FileSystem.get(uri, settings)
    field = jvm.java.lang.Class.forName("org.apache.hadoop.fs.FilterFileSystem").getDeclaredField("fs")
    field.setAccessible(True)
    own = field.get(files)
    if own.getClass().getName() != HADOOPS_OWN:
        return
    raw = compiled(spark, CLASS, SOURCE, own).newInstance()
    raw.initialize(uri, settings)
    field.set(files, raw)
