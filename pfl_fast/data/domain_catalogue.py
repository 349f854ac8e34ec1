"""Catalogue of data sets that consist of domains."""

from __future__ import annotations

from pfl_fast.data.entry import RESEARCH, Download, Entry
from pfl_fast.data.sources import digits5, image_folders, npz
from pfl_fast.data.sources.image_folders import Layout
from pfl_fast.data.sources.names import DIGITS, DOMAINNET10, OFFICE_CALTECH10, PACS

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
UNCHANGED_MEAN, UNCHANGED_STD = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
DOMAINNET_DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
OFFICE_DOMAINS = ("amazon", "caltech", "dslr", "webcam")


def _domainnet_downloads() -> tuple[Download, ...]:
    root = "https://csr.bu.edu/ftp/visda/2019/multi-source"
    archives = {
        "clipart": ("groundtruth/clipart", "cd0d8f2d77a4e181449b78ed62bccf1e", 1_270_000_000),
        "infograph": ("infograph", "720380b86f9e6ab4805bb38b6bd135f8", 4_000_000_000),
        "painting": ("groundtruth/painting", "1ae32cdb4f98fe7ab5eb0a351768abfd", 3_700_000_000),
        "quickdraw": ("quickdraw", "bdc1b6f09f277da1a263389efe0c7a66", 440_000_000),
        "real": ("real", "dcc47055e8935767784b7162e7c7cca6", 6_000_000_000),
        "sketch": ("sketch", "658d8009644040ff7ce30bb2e820850f", 2_600_000_000),
    }
    lists = {
        "clipart": "f5ddbcfd657a3acf9d0f7da10db22565",
        "infograph": "779626b50869edffe8ea6941c3755c71",
        "painting": "232b35dc53f26d414686ae579e38d9b5",
        "quickdraw": "c1a828fdfe216fb109f1c0083a252c6f",
        "real": "6098816791c3ebed543c71ffa11b9054",
        "sketch": "d8a222e4672cfd585298aa14d02ea441",
    }
    return (
        *(
            Download(f"{d}.zip", (f"{root}/{path}.zip",), f"md5:{md5}", size)
            for d, (path, md5, size) in archives.items()
        ),
        *(Download(f"{d}_test.txt", (f"{root}/domainnet/txt/{d}_test.txt",), f"md5:{md5}") for d, md5 in lists.items()),
    )


DOMAIN_DATASETS: dict[str, Entry] = {
    "digits5": Entry(
        title="Digits-Five",
        homepage="https://github.com/med-air/FedBN",
        licence="licences of the five parts; SVHN non-commercial only",
        classes=10,
        samples=737_540,
        size=32,
        downloads=(Download("digit_dataset.zip"),),
        by_hand="download digit_dataset.zip from the link in FedBN's README (https://github.com/med-air/FedBN) and "
        "unpack it, or place the original files: MNIST's idx files, http://ufldl.stanford.edu/housenumbers/ "
        "train_32x32.mat and test_32x32.mat, "
        "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/ usps.bz2 and usps.t.bz2, "
        "Digit-Five's syn_number.mat and mnistm_with_label.mat",
        sources=(
            digits5.SOURCE,
            npz.domains("digits5", digits5.DOMAINS, DIGITS),
            npz.domains("digits", digits5.DOMAINS, DIGITS),
        ),
        folders=("digits5", "digit_dataset", "digits5/digit_dataset", "Digit-Five"),
        domains=5,
    ),
    "office-caltech10": Entry(
        title="Office-Caltech-10",
        homepage="https://github.com/med-air/FedBN",
        licence=RESEARCH,
        classes=10,
        samples=2_533,
        size=256,
        downloads=(Download("office_caltech_10.zip"),),
        by_hand="download office_caltech_10.zip from the link in FedBN's README (https://github.com/med-air/FedBN), "
        "zip or unpacked",
        sources=(
            image_folders.source(
                Layout(
                    OFFICE_DOMAINS,
                    ("office_caltech*.zip", "office-caltech*.zip", "Office_Caltech*.zip"),
                    OFFICE_CALTECH10,
                    (("caltech10", "caltech"), ("laptop", "laptopcomputer")),
                )
            ),
            npz.domains("office_caltech10", OFFICE_DOMAINS, OFFICE_CALTECH10),
        ),
        folders=("office-caltech10", "office_caltech_10"),
        domains=4,
        official_test=False,
        augment="flip-rotate",
        mean=UNCHANGED_MEAN,
        std=UNCHANGED_STD,
    ),
    "domainnet": Entry(
        title="DomainNet, ten classes",
        homepage="http://ai.bu.edu/M3SDA/",
        licence="fair use: non-commercial research and education",
        classes=10,
        samples=22_851,
        size=256,
        downloads=_domainnet_downloads(),
        sources=(image_folders.source(Layout(DOMAINNET_DOMAINS, ("domainnet*.zip", "DomainNet*.zip"), DOMAINNET10)),),
        folders=("domainnet", "DomainNet"),
        domains=6,
        augment="flip-rotate",
        mean=UNCHANGED_MEAN,
        std=UNCHANGED_STD,
    ),
    "office-home": Entry(
        title="Office-Home",
        homepage="https://www.hemanthdv.org/officeHomeDataset.html",
        licence="fair use: non-commercial research and education",
        classes=65,
        samples=15_588,
        size=224,
        downloads=(Download("office_home.zip", (), "md5:b1c14819770c4448fd5b6d931031c91c", 1_200_000_000),),
        by_hand="download OfficeHomeDataset_10072016.zip from its homepage (Google Drive), or DomainBed's "
        "office_home.zip, zip or unpacked",
        sources=(
            image_folders.source(
                Layout(
                    ("Art", "Clipart", "Product", "Real World"),
                    ("OfficeHome*.zip", "office_home*.zip", "office-home*.zip"),
                )
            ),
        ),
        folders=("office-home", "office_home", "OfficeHome"),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        domains=4,
        official_test=False,
        test_by_class=True,
        augment="resized-crop-flip",
    ),
    "pacs": Entry(
        title="PACS",
        homepage="https://domaingeneralization.github.io/",
        licence=RESEARCH,
        classes=7,
        samples=9_991,
        size=224,
        downloads=(Download("PACS.zip", (), "md5:fd5db817f7cdafeef3bfd525aaf9b42e", 180_000_000),),
        by_hand="download PACS.zip from its homepage (Google Drive), or DomainBed's copy, zip or unpacked",
        sources=(
            image_folders.source(
                Layout(("art_painting", "cartoon", "photo", "sketch"), ("PACS*.zip", "pacs*.zip"), PACS)
            ),
        ),
        folders=("pacs", "PACS"),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        domains=4,
        official_test=False,
    ),
}
