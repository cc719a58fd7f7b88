// Memory of this process's GPUs that other processes of the machine may read, and memory of their
// GPUs that is mapped here. Processes tell each other by cards what they have and what they have
// mapped. So a kernel here can read what a neighbour's GPU has, without host memory in between.
//
// Mapping and unmapping may wait until devices are idle. So memory is mapped by the call after the
// one whose card has named it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "device/device.h"
#include "device/kept.h"

namespace herring::device {

// What one process tells another in one operation. It travels as it lies in memory.
struct Card {
  static constexpr size_t kMostLive = 8, kMostReadable = 4;

  uint32_t magic = 0;
  uint16_t shares = 0;  // not 0: the operation's data lies in the image
  uint16_t reaches = 0; // not 0: the sender has mapped an image of the receiver
  uint64_t id = 0;      // of the image that the operation uses; 0: none
  uint64_t bytes = 0;
  Exported memory;
  std::array<uint64_t, kMostLive> live = {};          // all images of the sender
  // Images of the receiver that the sender's kernels of this operation can read.
  std::array<uint64_t, kMostReadable> readable = {};
};

// Memory on a GPU that is exported. Freed when the GPU is idle.
class Image {
 public:
  // Must run while no stream waits for other ranks. A kDevice error says why there is none.
  static Result<std::unique_ptr<Image>> make(Device& device, size_t bytes);
  ~Image();
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  uint64_t id() const { return id_; }
  size_t bytes() const { return bytes_; }
  Address address() const { return address_; }
  const Exported& exported() const { return exported_; }

 private:
  Image(Device& device, Address address, size_t bytes);

  Device& device_;
  const Address address_;
  const size_t bytes_;
  uint64_t id_ = 0;  // random, so it differs from those of all processes
  Exported exported_;
};

// An image of another process as mapped for one device. Unmapped when the GPU is idle.
class Import {
 public:
  Import(Device& device, uint64_t id, size_t bytes, const Exported& from, Address address)
      : id(id), bytes(bytes), address(address), device_(device), from_(from) {}
  ~Import();
  Import(const Import&) = delete;
  Import& operator=(const Import&) = delete;

  const uint64_t id;
  const size_t bytes;
  const Address address;

 private:
  Device& device_;
  const Exported from_;
};

// What this process knows of the images of others. An owner is a rank of one start of a job. Any
// thread may call what is not said to need a certain one.
class Neighbours {
 public:
  using Owner = uint64_t;

  static Neighbours& instance();  // never destroyed, because a driver may end before it

  void learn(Owner owner, const Card& card);
  // Forgets a rank that is gone, or all ranks of this start of a job.
  void forget(uint32_t incarnation, uint32_t rank);
  void forget(uint32_t incarnation);
  static Owner owner_of(uint32_t incarnation, uint32_t rank) {
    return Owner{incarnation} << 32 | rank;
  }

  // Returns whether one of the owners has mapped memory of this process.
  bool reaches_us(const std::vector<Owner>& owners);
  // Returns whether an image of one of them could be mapped for this device.
  bool any_to_map(int device, const std::vector<Owner>& owners);
  // Maps them. Must run on a thread that may call the driver, while no stream waits for other
  // ranks.
  void map(Device& device, const std::vector<Owner>& owners);
  // Returns the mapped images of an owner with at least so many bytes.
  std::vector<std::shared_ptr<const Import>> mapped(int device, Owner owner, size_t bytes);

  // This process's own images.
  std::array<uint64_t, Card::kMostLive> live();
  void add(uint64_t id);
  void remove(uint64_t id);
  // Keeps an image for a while that a neighbour's GPU may still read after a failure.
  void keep_for_a_while(std::unique_ptr<Image> image);

 private:
  struct ForeignImage {
    size_t bytes = 0;
    Exported memory;
    std::map<int, std::shared_ptr<const Import>> mapped;  // by device; null: it cannot be mapped
  };
  struct Rank {
    bool reaches_us = false;
    std::map<uint64_t, ForeignImage> images;  // by ID
  };

  std::mutex mutex_;
  std::map<Owner, Rank> ranks_;
  std::vector<uint64_t> live_;
  KeptForAWhile<std::unique_ptr<Image>> kept_;
};

}  // namespace herring::device
